"""`python -m services.placement`"""

from libs.host.process import main
from services.placement.app import build
from services.placement.settings import PlacementSettings

if __name__ == "__main__":
    raise SystemExit(main("placement", PlacementSettings, build))
