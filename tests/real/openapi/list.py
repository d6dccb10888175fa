# What a backend in Python writes against the generated client.
import sys

from platform_client import AuthenticatedClient
from platform_client.api.assistants import get_assistants

url, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
print(" ".join(assistant.identifier for assistant in get_assistants.sync(client=client)))
