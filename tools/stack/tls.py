"""Certificates of a secured stack: one authority for the loopback address, made by openssl, thrown away with the stack.

Kafka reads PEM files that hold the key (PKCS 8) and the certificate together, Redis reads them apart.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.stack.errors import StackError
from tools.stack.ports import LOOPBACK

_DAYS = "30"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where they lie; `server.pem` is key and certificate in one file."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def both(self) -> Path:
        return self.folder / "server.pem"

    def make(self, openssl: Path) -> None:
        """Keeps what is there."""
        if self.both.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = self.folder / "server.ext"
        names.write_text(
            f"subjectAltName=IP:{LOOPBACK}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n",
            encoding="ascii",
        )
        ca_key, request = self.folder / "ca.key", self.folder / "server.csr"
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        for command in (
            ("genpkey", *curve, "-out", str(ca_key)),
            ("req", "-x509", "-new", "-key", str(ca_key), "-subj", "/CN=drystone-stack", "-days", _DAYS,
             "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", str(self.authority)),
            ("genpkey", *curve, "-out", str(self.key)),
            ("req", "-new", "-key", str(self.key), "-subj", "/CN=kafka", "-out", str(request)),
            ("x509", "-req", "-in", str(request), "-CA", str(self.authority), "-CAkey", str(ca_key), "-CAcreateserial",
             "-days", _DAYS, "-extfile", str(names), "-out", str(self.certificate)),
        ):  # fmt: skip
            done = subprocess.run([str(openssl), *command], capture_output=True, text=True, check=False)
            if done.returncode:
                raise StackError(f"openssl {command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
        self.both.touch(mode=0o600)
        self.both.write_text(self.key.read_text() + self.certificate.read_text(), encoding="ascii")
