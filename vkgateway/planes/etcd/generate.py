"""Generate pb/etcd_pb2.py from etcd.proto; requires the development dependency grpcio-tools."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PB_INIT = '"""Generated from etcd.proto by generate.py; not edited by hand."""\n'


def generate(target: Path) -> None:
    """Generate the module into `target`. Raises RuntimeError if the compiler fails."""
    from grpc_tools import protoc

    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text(PB_INIT)
    status = protoc.main(["protoc", f"--proto_path={HERE}", f"--python_out={target}", "etcd.proto"])
    if status:
        raise RuntimeError(f"protoc exited with status {status}")


if __name__ == "__main__":
    generate(HERE / "pb")
