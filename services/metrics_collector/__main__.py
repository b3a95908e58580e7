"""`python -m services.metrics_collector`"""

from libs.host.process import main
from services.metrics_collector.app import build
from services.metrics_collector.settings import CollectorSettings

if __name__ == "__main__":
    raise SystemExit(main("metrics-collector", CollectorSettings, build, needs=("bus",)))
