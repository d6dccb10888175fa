"""An agent on agno's server: its sessions are kept in PostgreSQL, its model is the one of the benchmark."""

import os

from agno.agent import Agent
from agno.db.postgres import PostgresDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS

agent = Agent(
    id="agent",
    model=OpenAIChat(id=os.environ["MODEL"], base_url=os.environ["MODEL_URL"], api_key="none"),
    db=PostgresDb(db_url=os.environ["DATABASE"]),
    telemetry=False,
)
app = AgentOS(agents=[agent], telemetry=False).get_app()
