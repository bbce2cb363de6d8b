"""An MCP client of the official Python SDK. The task is JSON in TASK, as for agent.mjs."""

import asyncio
import json
import os

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

TASK = json.loads(os.environ["TASK"])
QUESTIONS = []


def transport():
    if "command" in TASK:
        command, *arguments = TASK["command"]
        return stdio_client(StdioServerParameters(command=command, args=arguments))
    headers = {"Authorization": f"Bearer {TASK['bearer']}"}
    return streamable_http_client(TASK["url"], http_client=httpx2.AsyncClient(headers=headers))


async def answer(_context, params):
    QUESTIONS.append(params.message)
    return ElicitResult.model_validate(TASK["answer"])


async def main():
    options = {"mode": TASK.get("mode", "auto")}
    if "answer" in TASK:
        options["elicitation_callback"] = answer
    outcomes = []
    async with Client(transport(), **options) as client:
        for step in TASK["steps"]:
            try:
                if step["do"] == "tools":
                    result = await client.list_tools()
                else:
                    result = await client.call_tool(step["do"], step.get("with", {}))
                outcomes.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
            except Exception as error:  # each kind of error is an outcome
                outcomes.append({"thrown": str(error)})
    print(json.dumps({"outcomes": outcomes, "questions": QUESTIONS}))


asyncio.run(main())
