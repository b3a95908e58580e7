"""`python -m services.watcher`"""

from libs.host.process import main
from services.watcher.app import build
from services.watcher.settings import WatcherSettings

if __name__ == "__main__":
    raise SystemExit(main("watcher", WatcherSettings, build))
