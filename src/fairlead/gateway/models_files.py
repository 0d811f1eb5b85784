"""Request and response models of files; see `models.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairlead.domain.files import MAX_NAME, MAX_PURPOSE
from fairlead.gateway.derived_models import Shape, example
from fairlead.gateway.models import MOMENT, Page, PageQuery, UserId

FILE_ID = "file-01938f1c8b207c31a05d7c9f4d2e3f60"
MAX_EXPIRY = 10 * 366 * 86400
_FILE = {
    "id": FILE_ID,
    "user_id": "ada",
    "name": "cat.png",
    "content_type": "image/png",
    "purpose": "upload",
    "size": 482133,
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "status": "ready",
    "created_at": MOMENT,
    "expires_at": None,
    "job_id": None,
    "url": f"/files/{FILE_ID}?ticket=1769864400.5e8f1c0a",
    "url_expires_at": MOMENT,
}
_UPLOAD = {**_FILE, "status": "uploading", "size": None, "sha256": None, "url": None, "url_expires_at": None}


class File(Shape):
    """A file. `url` reads its content until `url_expires_at`, without a key."""

    model_config = example(**_FILE)

    id: str
    user_id: str
    name: str
    content_type: str
    purpose: str = Field(description="What the uploader gave, else `upload`; `result` or `value` for files of jobs.")
    size: int | None = Field(description="In bytes; null while the file is being uploaded.")
    sha256: str | None
    status: Literal["ready", "uploading"]
    created_at: str
    expires_at: str | None
    job_id: str | None = Field(description="The job that the file was made by or for. It ends with this job.")
    url: str | None
    url_expires_at: str | None


class Upload(File):
    """A file that is being uploaded in parts."""

    model_config = example(**_UPLOAD, offset=0)

    offset: int = Field(description="How many bytes have arrived; the next part begins there.")


class FilePage(Page):
    data: list[File]


class FilesQuery(PageQuery):
    user_id: str | None = Field(None, min_length=1, max_length=255)
    purpose: str | None = Field(None, min_length=1, max_length=MAX_PURPOSE)


class UploadQuery(Shape):
    """The fields of a file that is sent as a plain body. A form has them as its own fields."""

    filename: str = Field("file", min_length=1, max_length=4 * MAX_NAME)
    purpose: str = Field("upload", min_length=1, max_length=MAX_PURPOSE)
    user_id: str | None = Field(None, min_length=1, max_length=255, description="Only for keys that act for users.")
    expires_after: float | None = Field(None, gt=0, le=MAX_EXPIRY, description="In seconds. Default: never.")
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="The upload fails if its bytes differ.")


class UploadRequest(Shape):
    """A file that will be sent in parts."""

    model_config = example(filename="film.mp4", content_type="video/mp4", user_id="ada")

    filename: str = Field(min_length=1, max_length=4 * MAX_NAME)
    content_type: str | None = Field(None, max_length=MAX_NAME)
    purpose: str = Field("upload", min_length=1, max_length=MAX_PURPOSE)
    user_id: UserId | None = None
    expires_after: float | None = Field(None, gt=0, le=MAX_EXPIRY)
