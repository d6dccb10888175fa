"""The official library of Standard Webhooks reads a delivery. Arguments: secret, headers as JSON, body."""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

secret, headers, body = sys.argv[1:]
webhook, headers = Webhook(secret), json.loads(headers)
try:
    webhook.verify(body.replace("Hello", "Hullo"), headers)
    changed = "taken"
except WebhookVerificationError:
    changed = "refused"
print(json.dumps({"type": webhook.verify(body, headers)["type"], "changed": changed}))
