"""`python -m services.binder`"""

from libs.host.process import main
from services.binder.app import build
from services.binder.settings import BinderSettings

if __name__ == "__main__":
    raise SystemExit(main("binder", BinderSettings, build))
