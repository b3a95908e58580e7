"""kube-apiserver with RBAC and a fixed token for each account."""

from tools.stack import accounts, keys, probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools
from tools.stack.paths import write_private

# Writes only, without bodies: enough to count them for each user, at a small cost. Leases are logged as well, so that
# who counts may decide (tools.stack.audit leaves them out).
_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"""


def _prepare(info: StackInfo, _tools: Tools) -> None:
    pki = info.directory / "pki"
    write_private(pki / "tokens.csv", accounts.token_file(info.tokens))
    key = pki / "service-account.key"
    if not key.exists():
        write_private(key, keys.new_signing_key())
    write_private(info.directory / "apiserver" / "audit-policy.yaml", _AUDIT_POLICY)
    for name, token in info.tokens.items():
        write_private(info.kubeconfig_for(name), accounts.kubeconfig(info.api_server, info.ca_file, name, token))


def _command(info: StackInfo, tools: Tools) -> list[str]:
    pki = info.directory / "pki"
    host, port = info.address("apiserver").split(":")
    command = [
        str(tools["kube-apiserver"]),
        f"--etcd-servers=http://{info.address('etcd')}",
        f"--bind-address={host}",
        f"--secure-port={port}",
        # Otherwise it asks for the machine's outer address, which need not exist, and puts it into its certificate.
        f"--advertise-address={host}",
        # Keeps the `kubernetes` service pointed at this address, which must not be a loopback one, and nobody uses it.
        "--endpoint-reconciler-type=none",
        # Any: no service is reached here. Given, as the default is going away.
        "--service-cluster-ip-range=10.0.0.0/24",
        # It makes its own certificate there, and finds it again at the next start.
        f"--cert-dir={pki}",
        f"--service-account-issuer={info.api_server}",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        # ServiceAccount: refuses pods until a controller has made their account, and mounts a token nobody reads.
        # TaintNodesByCondition: taints new nodes until the node lifecycle controller, which is off here, clears them.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        # The defaults (400 and 200) would queue a benchmark's requests on two cores before the cores are busy.
        "--max-requests-inflight=3000",
        "--max-mutating-requests-inflight=1500",
        # Open watches end when it is asked to stop; otherwise it waits a minute for clients to leave by themselves.
        "--shutdown-watch-termination-grace-period=1s",
        # Tests clear whole namespaces with one call.
        "--delete-collection-workers=8",
        "--event-ttl=15m",
        "--allow-privileged=true",
        # Off, as it costs time and nobody reads it here: profiles, the regular counting of all keys and of the
        # database's size.
        "--profiling=false",
        "--etcd-count-metric-poll-period=0",
        "--etcd-db-metric-poll-interval=0",
        "--v=0",
    ]
    if info.audit_log is not None:
        command += [
            f"--audit-policy-file={info.directory / 'apiserver' / 'audit-policy.yaml'}",
            f"--audit-log-path={info.audit_log}",
            # The other mode drops entries when it is busy, and then a count of writes is too low.
            "--audit-log-mode=blocking",
            # In one file: who counts reads no rotated ones.
            "--audit-log-maxsize=1000000",
        ]
    return command


def _ready(info: StackInfo) -> bool:
    # The namespace comes a moment after the server says that it is ready.
    return all(
        probe.get(info.address("apiserver"), path, ca_file=info.ca_file, tls=True, token=info.admin_token) == 200
        for path in ("/readyz", "/api/v1/namespaces/default")
    )


APISERVER = Part("apiserver", ("kube-apiserver", "kubectl"), _command, _ready, _prepare, after=("etcd",))
