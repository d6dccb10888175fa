"""A graph of one model call, for LangGraph's development server, which keeps its runs in memory."""

import os

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model=os.environ["MODEL"], base_url=os.environ["MODEL_URL"], api_key="none", streaming=True)


async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
graph = graph.compile()
