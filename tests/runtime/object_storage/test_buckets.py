"""A bucket that does not exist, or that may not be used, is named in an error of its own."""

from collections.abc import Callable

import pytest

from gigl_loader import DistDataset
from gigl_loader.errors import ObjectStorageError
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from tests.runtime.object_storage.object_server import BUCKET, SECRET, Fault, failing

Use = Callable[[str], object]
USES: dict[str, Use] = {
    "list": lambda url: ObjectFolder(url).sizes(),
    "read": lambda url: ObjectFolder(url).read("x.bin"),
    "find": lambda url: ObjectFolder(url).find("x.bin"),
    "write": lambda url: ObjectFolder(url).write("x.bin", b"1"),
    "load": lambda url: DistDataset.load(url, 0),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_bucket_that_does_not_exist(storage, use: Use) -> None:
    with pytest.raises(ObjectStorageError) as refused:
        use("s3://no-such-bucket/folder")
    said = str(refused.value)
    assert said.startswith("s3://no-such-bucket/folder")
    assert "the bucket 'no-such-bucket' does not exist" in said
    assert "404 Not Found (NoSuchBucket)" in said
    assert "Generic" not in said
    assert "Error performing" not in said


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_bucket_that_may_not_be_used(storage, use: Use) -> None:
    storage.proxy.faults = [
        Fault(failing(403, "AccessDenied"), method=method) for method in ("GET", "PUT", "POST")
    ]
    with pytest.raises(ObjectStorageError) as refused:
        use(storage.url)
    said = str(refused.value)
    assert said.startswith(storage.url)
    assert f"the bucket {BUCKET!r}, or this object, may not be used with these credentials" in said
    assert "403 Forbidden (AccessDenied)" in said
    assert "Generic" not in said
    assert SECRET not in said
