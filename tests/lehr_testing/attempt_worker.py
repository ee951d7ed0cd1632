"""A worker of one attempt: the requests that a shipper sends, with the attempt's token."""

from lehr_testing.api import attempt_token


class Worker:
    """Send requests as the shipper of one attempt does."""

    def __init__(self, client, run_id, number=1):
        self.client = client
        self.id = f"{run_id}-{number}"
        self.headers = {
            "Authorization": f"Bearer {attempt_token(run_id, number)}",
            "Lehr-Protocol": "1",
        }

    def put(self, data, offset, name="events.jsonl", **headers):
        return self.client.put(
            f"/api/v1/attempts/{self.id}/streams/{name}",
            params={"offset": offset},
            content=data,
            headers={**self.headers, "Content-Type": "application/octet-stream", **headers},
        )

    def offsets(self):
        answer = self.client.get(f"/api/v1/attempts/{self.id}/streams", headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["offsets"]

    def post(self, what, body):
        return self.client.post(
            f"/api/v1/attempts/{self.id}/{what}", json=body, headers=self.headers
        )

    def heartbeat(self, **body):
        answer = self.post("heartbeat", {"boot_id": "b", "pid": 1, "sizes": {}, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()


def run_of(api_, worker):
    """Return the run that the worker's attempt belongs to."""
    return api_.store.runs.get(worker.id.rpartition("-")[0])
