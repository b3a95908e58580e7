"""`python -m services.preemptor`"""

from libs.host.process import main
from services.preemptor.app import build
from services.preemptor.settings import PreemptorSettings

if __name__ == "__main__":
    raise SystemExit(main("preemptor", PreemptorSettings, build))
