"""A running gateway, as programs use it.

    with fairlead.Client("http://127.0.0.1:8000", key="fl_…") as client:
        job = client.submit("image_gen", {"prompt": "a harbour"}, user_id="ada")
        for event in job.watch():
            print(event["type"], event["message"])
        print(job.result(timeout=60))

`AsyncClient` has the same calls to await. Every call that failed for a passing reason is tried again; a submit carries
an idempotency key, so that trying it again makes no second job. Errors are those of `fairlead.errors`.
"""

from fairlead.client.asynchronous import AsyncClient, AsyncJob
from fairlead.client.asynchronous_batches import AsyncBatch
from fairlead.client.asynchronous_turns import AsyncTurn
from fairlead.client.batch_calls import BatchPage
from fairlead.client.errors import Forbidden, NoConnection, NotAGateway, TooManyRequests, Unauthorized
from fairlead.client.shapes import Inference, JobPage, Submitted
from fairlead.client.synchronous import Client, ClientJob
from fairlead.client.synchronous_batches import ClientBatch
from fairlead.client.synchronous_turns import ClientTurn
from fairlead.client.turn_calls import TurnState

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncJob",
    "AsyncTurn",
    "BatchPage",
    "Client",
    "ClientBatch",
    "ClientJob",
    "ClientTurn",
    "Forbidden",
    "Inference",
    "JobPage",
    "NoConnection",
    "NotAGateway",
    "Submitted",
    "TooManyRequests",
    "TurnState",
    "Unauthorized",
]
