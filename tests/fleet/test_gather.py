"""`gather` from an S3 server and from Ray's nodes, and `doctor --ray` (scripts/fleet-tests)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.bench.fleet import two_nodes
from tools.fleet.planted import Plan, write_run
from wstrace.findings.analysed_run import load_run

pytestmark = pytest.mark.fleet


def wstrace(*words: str, **env: str) -> tuple[int, str, str]:
    told = subprocess.run(
        [sys.executable, "-m", "wstrace.cli.app", *words],
        capture_output=True, text=True, check=False, env=os.environ | env,
    )  # fmt: skip
    return told.returncode, told.stdout, told.stderr


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """moto's S3 with an empty bucket `traces`; the variables that lead there."""
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        env = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3", endpoint_url=env["AWS_ENDPOINT_URL"], aws_access_key_id="test",
            aws_secret_access_key="test", region_name="us-east-1",
        )  # fmt: skip
        client.create_bucket(Bucket="traces")
        yield env
    finally:
        server.stop()


def upload(folder: Path, env: dict[str, str]) -> None:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL"], region_name="us-east-1",
                          aws_access_key_id="test", aws_secret_access_key="test")  # fmt: skip
    for file in folder.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), "traces", file.relative_to(folder).as_posix())


def test_an_s3_bucket_is_gathered_and_a_second_call_copies_what_is_new(
    bucket: dict[str, str], tmp_path: Path
) -> None:
    files = write_run(Plan(run="a", ranks=4, hosts=2), tmp_path / "far").files
    upload(tmp_path / "far", bucket)
    words = ("gather", "s3://traces", "-o", str(tmp_path / "here"))
    code, out, err = wstrace(*words, **bucket)
    assert (code, "5 files copied" in out) == (0, True), err
    for file in files.values():
        assert (tmp_path / "here" / "a" / file.name).read_bytes() == file.read_bytes()
    write_run(Plan(run="b"), tmp_path / "more")
    upload(tmp_path / "more", bucket)
    code, out, err = wstrace(*words, **bucket)
    assert (code, "2 files copied" in out, "5 there before" in out) == (0, True, True), err
    assert load_run(tmp_path / "here" / "a").verdict() == "clean"


def test_a_bucket_that_is_not_there_is_told(bucket: dict[str, str], tmp_path: Path) -> None:
    code, _, err = wstrace("gather", "s3://other/x", "-o", str(tmp_path / "here"), **bucket)
    assert code in (1, 2)
    assert "Traceback" not in err


def test_each_ray_node_sends_its_own_files(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=4, hosts=2), tmp_path / "far")
    with two_nodes():
        words = (f"ray:{tmp_path / 'far'}", "-o", str(tmp_path / "here"))
        code, out, err = wstrace("gather", *words)
        assert (code, "a: 5 files" in out) == (0, True), err
        # the two nodes of this machine have the same files: each is read, one is kept
        assert "10 files copied" in out
        code, out, err = wstrace("gather", *words)
        assert (code, "10 there before" in out) == (0, True), err
    assert load_run(tmp_path / "here" / "a").verdict() == "clean"


def test_doctor_asks_every_node(tmp_path: Path) -> None:
    with two_nodes():
        code, out, err = wstrace("doctor", "--ray", "-o", str(tmp_path))
    lines = [line for line in out.splitlines() if "Ray node" in line]
    assert len(lines) == 2, out + err
    assert all(line.startswith("ok") for line in lines)
    assert code == 0
