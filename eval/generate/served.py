"""Responses of a server with OpenAI's interface (vLLM, SGLang, llama.cpp, ...): one request per
sample, with its seed.

The local engine gets tokens, the server gets text: a fixed wording goes to /completions unchanged,
messages go to /chat/completions, where the server applies its model's chat template.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from exgrpo_eval.generate.generation import Prompt, Request, Response
from exgrpo_eval.generate.question_files import Question
from exgrpo_eval.generate.settings import Settings
from exgrpo_eval.generate.templates import Template

CONCURRENT = 64  # requests at a time, without --max_num_seqs
RETRIES = 6  # after no answer, 408, 409, 429 or 5xx; the waits between them add up to half a minute
READ_S = 3600.0  # time limit of one response, which may wait in the server's queue for long
FINISHED = ("stop", "length", "content_filter")


@dataclass(frozen=True)
class Server:
    """Where a model is served, and under which name.

    `about` is what the server says about the model. `engine` is the model's owner in the server's
    list, where engines write their own name ("vllm", "sglang", "llamacpp"); None if the list does
    not say.
    """

    base_url: str
    model: str
    key: str
    about: dict[str, Any]
    engine: str | None


def find(settings: Settings) -> Server:
    """Find the model in the server's list of models.

    Raises:
        ValueError: no key, no answer, or no such model; the message names the flag.
    """
    from openai import OpenAI, OpenAIError

    assert settings.base_url
    key = os.environ.get(settings.api_key_env or "OPENAI_API_KEY")
    if settings.api_key_env and not key:
        raise ValueError(
            f"--api_key_env={settings.api_key_env}: no such variable in the environment, or "
            "an empty one"
        )
    key = key or "none"
    try:
        with OpenAI(
            base_url=settings.base_url, api_key=key, max_retries=RETRIES, timeout=30
        ) as client:
            models = {model.id: model for model in client.models.list()}
    except (OpenAIError, ValueError, TypeError) as error:
        raise ValueError(
            f"--base_url={settings.base_url}: its models cannot be listed ({error})"
        ) from error
    name = settings.served_model or (next(iter(models)) if len(models) == 1 else None)
    if name not in models:
        raise ValueError(f"--served_model={name}: must be one of {', '.join(models)}")
    model = models[name]
    about = {field: getattr(model, field, None) for field in ("root", "max_model_len")}
    about = {field: value for field, value in about.items() if value is not None}
    return Server(settings.base_url, name, key, about, getattr(model, "owned_by", None))


def generate(
    server: Server, settings: Settings, requests: Mapping[int, Request]
) -> Iterator[list[Response]]:
    """Yield responses as they arrive; first an empty list, as the local engine does when it is
    loaded.

    Args:
        requests: by their positions in the list that responses refer to.

    Raises:
        RuntimeError: a request failed; responses that have arrived were yielded before.
    """
    from openai import AsyncOpenAI, Timeout

    yield []
    waiting = iter(requests.items())
    running: set[asyncio.Task[Response]] = set()
    concurrent = settings.max_num_seqs or CONCURRENT
    with asyncio.Runner() as runner:  # cancels running requests at the end of the block
        timeout = Timeout(READ_S, connect=10.0)
        client = AsyncOpenAI(
            base_url=server.base_url, api_key=server.key, max_retries=RETRIES, timeout=timeout
        )
        loop = runner.get_loop()
        while True:
            running |= {
                loop.create_task(_respond(client, server.model, settings, place, request))
                for place, request in islice(waiting, concurrent - len(running))
            }
            if not running:
                return
            done, running = runner.run(_first(running))
            if answered := [task.result() for task in done if not task.exception()]:
                yield answered
            for task in done:
                task.result()


async def _first(
    running: set[asyncio.Task[Response]],
) -> tuple[set[asyncio.Task[Response]], set[asyncio.Task[Response]]]:
    return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _respond(
    client: Any, model: str, settings: Settings, place: int, request: Request
) -> Response:
    from openai import OpenAIError

    sampling = {
        "model": model,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "seed": request.seed,
    }
    try:
        if request.prompt.messages is None:
            reply = await client.completions.create(prompt=request.prompt.text, **sampling)
        else:
            reply = await client.chat.completions.create(
                messages=list(request.prompt.messages), **sampling
            )
    except OpenAIError as error:
        raise RuntimeError(
            f"--base_url={settings.base_url}: {error}; the same command continues from here"
        ) from error
    return _response(reply, place)


def _response(reply: Any, place: int) -> Response:
    """Read the server's reply; RuntimeError if it is not a finished response."""
    if not reply.choices or reply.choices[0].finish_reason not in FINISHED:
        reason = reply.choices[0].finish_reason if reply.choices else None
        raise RuntimeError(
            f"the server ended a request by {reason!r}: must be one of {', '.join(FINISHED)}"
        )
    choice = reply.choices[0]
    text = _message_text(choice.message) if hasattr(choice, "message") else choice.text
    return Response(
        place, text, reply.usage.completion_tokens if reply.usage else 0, choice.finish_reason
    )


def _message_text(message: Any) -> str:
    """A message's text; a thought that the server has separated from it is put before it again."""
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + (message.content or "")


def identity(server: Server) -> Mapping[str, Any]:
    """What identifies the served model; without the address, which may differ between sessions."""
    return {
        "served_model": server.model,
        **{f"served_{key}": value for key, value in server.about.items()},
    }


def record(server: Server) -> dict[str, Any]:
    """The facts of the server for the run file."""
    return {"address": public_address(server.base_url), "engine": server.engine}


def public_address(base_url: str) -> str:
    """An address without user, password and query, any of which may be a secret."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def encode(template: Template, question: Question) -> Prompt:
    """A question's prompt as text, or with its messages; ValueError if the wording has no place for
    them.
    """
    turns = template.turns(question.messages)
    if not template.chat:
        return Prompt(turns[-1]["content"])
    shown = [
        turn["content"] if len(turns) == 1 else f"{turn['role']}: {turn['content']}"
        for turn in turns
    ]
    return Prompt("\n\n".join(shown), messages=tuple(turns))
