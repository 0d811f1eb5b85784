"""Clients of a running gateway.

    with fairlead.Client("http://127.0.0.1:8000", key="fl_…") as client:
        job = client.submit("image_gen", {"prompt": "a harbour"}, user_id="ada")
        for event in job.watch():
            print(event["type"], event["message"])
        print(job.result(timeout=60))

`AsyncClient` has the same methods in asynchronous form. Calls that fail temporarily are retried. A submit carries an
idempotency key, so that a retry does not create a second job. Calls raise the exceptions of `fairlead.errors`.
"""

from fairlead.client.async_turn import AsyncTurn
from fairlead.client.asynchronous import AsyncClient, AsyncJob
from fairlead.client.asynchronous_batches import AsyncBatch
from fairlead.client.batch_calls import BatchPage
from fairlead.client.errors import Forbidden, NoConnection, NotAGateway, TooManyRequests, Unauthorized
from fairlead.client.shapes import Inference, JobPage, Submitted
from fairlead.client.sync_turn import ClientTurn
from fairlead.client.synchronous import Client, ClientJob
from fairlead.client.synchronous_batches import ClientBatch
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
