"""Answers of the hollow kubelet: logs, attach and exec.

The containers of hollow nodes do not exist. Their log is a fixed text, attach is silent until the pod ends, and exec
runs the command in a sandbox (`sandbox`). The sandbox is killed when the client disconnects or the pod ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.limits import StreamLimiter, TooManyStreamsError
from vkgateway_platform.embedded.hollow.kubelet import pods, remote
from vkgateway_platform.embedded.hollow.kubelet.command import Command, CommandSpec
from vkgateway_platform.embedded.hollow.kubelet.framing import BrokenProtocolError, Channel
from vkgateway_platform.embedded.hollow.kubelet.logs import log_lines
from vkgateway_platform.embedded.hollow.kubelet.pods import Pod
from vkgateway_platform.embedded.hollow.kubelet.remote import RemoteStream
from vkgateway_platform.embedded.hollow.kubelet.tenant_cgroups import TenantCgroups

COMMANDS_OF_A_TENANT: Final = 16
COMMANDS: Final = 64
"""Maximum number of concurrent commands, since each may use memory."""
_STALL_SECONDS: Final = 60.0
"""Seconds after which a command that does not read its input is killed; meanwhile a disconnect would go unnoticed."""
_RESIZE_MAX: Final = 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _StreamRequest:
    """A request for a container's log, or for a stream."""

    request: Request
    session: Session
    namespace: str
    name: str
    container: str


class Endpoint:
    """Answers the compute API server and no other caller; `caller` is the common name of its certificate."""

    def __init__(self, client: Client, *, caller: str, cgroups: TenantCgroups) -> None:
        self._client = client
        self._caller = caller
        self._cgroups = cgroups
        self._streams: Final = {
            "containerLogs": self._answer_logs,
            "exec": self._answer_exec,
            "attach": self._answer_attach,
        }
        self._running = StreamLimiter(COMMANDS_OF_A_TENANT, total=COMMANDS, what="commands in pods on hollow nodes")

    async def answer(self, request: Request, session: Session) -> Reply | None:
        if not self._is_caller(session.stream.tls):
            return Reply.from_text(403, "only the API server of this cluster is served here")
        match request.path:
            case ("healthz",):
                return Reply.from_text(200, "ok")
            case ("portForward", *_):
                return Reply.from_text(400, "pods on hollow nodes have no ports: no process runs in them")
            case (("containerLogs" | "exec" | "attach") as what, namespace, name, *_, container):
                stream_request = _StreamRequest(request, session, namespace, name, container)
                return await self._streams[what](stream_request)
        return Reply.from_text(404, "not served by hollow nodes")

    def _is_caller(self, tls: TlsEngine | None) -> bool:
        subject = tls.peer_names().get("subject", ()) if tls is not None else ()
        return [value for part in subject for key, value in part if key == "commonName"] == [self._caller]

    async def _answer_logs(self, stream_request: _StreamRequest) -> Reply | None:
        """Return the log; a followed log ends with the pod or the client."""
        query = dict(stream_request.request.query)
        text = log_lines(query)
        if query.get("follow") not in ("true", "1"):
            return Reply(200, text)
        pod = await self._find_pod(stream_request)
        if isinstance(pod, Reply):
            return Reply(200, text) if pod.status == 400 else pod
        session = stream_request.session
        session.start_body((("transfer-encoding", "chunked"), ("content-type", "text/plain")))
        if text:
            session.stream.write(b"%x\r\n%b\r\n" % (len(text), text))
        await _run_until_first(pods.wait_until_ended(self._client, pod), _wait_for_close(session))
        session.stream.write(b"0\r\n\r\n")
        return None

    async def _find_pod(self, stream_request: _StreamRequest) -> Pod | Reply:
        try:
            pod = await pods.get_pod(self._client, stream_request.namespace, stream_request.name)
        except errors.NotFound:
            return Reply.from_text(404, f"pod {stream_request.name} does not exist")
        except errors.ApiError as error:
            return Reply.from_text(503, f"the API server does not say whether pod {stream_request.name} runs: {error}")
        if not pod.has_container(stream_request.container):
            return Reply.from_text(404, f'container not found ("{stream_request.container}")')
        if not pod.is_running:
            return Reply.from_text(400, f"pod {stream_request.name} does not run")
        return pod

    async def _answer_attach(self, stream_request: _StreamRequest) -> Reply | None:
        pod = await self._find_pod(stream_request)
        if isinstance(pod, Reply):
            return pod
        stream = remote.upgrade_connection(stream_request.request, stream_request.session)
        if isinstance(stream, Reply):
            return stream
        try:
            await stream.wait_for_channels(_requested_channels(stream_request.request))
            await _run_until_first(pods.wait_until_ended(self._client, pod), _discard_input(stream))
            await stream.finish(remote.exit_status(0))
        except BrokenProtocolError as error:
            _log.info(
                "attach broken off", namespace=stream_request.namespace, pod=stream_request.name, error=str(error)
            )
        return None

    async def _answer_exec(self, stream_request: _StreamRequest) -> Reply | None:
        pod = await self._find_pod(stream_request)
        if isinstance(pod, Reply):
            return pod
        argv = tuple(value for key, value in stream_request.request.query if key == "command")
        if not argv or not argv[0]:
            return Reply.from_text(400, "you must specify at least 1 command for the container")
        try:
            with (
                self._running.hold_stream(pod.tenant_name),
                self._cgroups.hold_group(pod.tenant_name) as cgroup,
            ):
                wanted = CommandSpec(
                    argv=argv,
                    hostname=pod.metadata.name,
                    stdin=remote.is_requested(stream_request.request, "input"),
                    tty=remote.is_requested(stream_request.request, "tty"),
                    cgroup=cgroup,
                )
                return await self._run_sandboxed(stream_request, pod, wanted)
        except TooManyStreamsError as error:
            return Reply.from_text(429, str(error))
        except UnavailableError as error:
            _log.warning("exec refused", namespace=stream_request.namespace, pod=stream_request.name, error=str(error))
            return Reply.from_text(400, str(error))
        except BrokenProtocolError as error:
            _log.info("exec broken off", namespace=stream_request.namespace, pod=stream_request.name, error=str(error))
            return None

    async def _run_sandboxed(self, stream_request: _StreamRequest, pod: Pod, wanted: CommandSpec) -> Reply | None:
        """Run a command. It starts before the upgrade, so that a failure is an ordinary response."""
        command = await Command.start(wanted)
        try:
            stream = remote.upgrade_connection(stream_request.request, stream_request.session)
            if isinstance(stream, Reply):
                return stream
            await stream.wait_for_channels(_requested_channels(stream_request.request))
            await stream.finish(await self._relay_command(pod, command, stream))
        finally:
            await command.kill()
        return None

    async def _relay_command(self, pod: Pod, command: Command, stream: RemoteStream) -> bytes:
        """Relay bytes until the command or the pod ends; return the status. Raises OSError on a disconnect."""
        output = asyncio.create_task(_send_output(command, stream), name="hollow-exec-output")
        try:
            await _run_until_first(
                _wait_for_task(output), pods.wait_until_ended(self._client, pod), _forward_input(command, stream)
            )
            if output.done():
                return remote.exit_status(output.result())
            return remote.failure_status(f"the command was killed: pod {pod.metadata.name} has ended")
        finally:
            output.cancel()
            await asyncio.gather(output, return_exceptions=True)


def _requested_channels(request: Request) -> set[Channel]:
    """Return the channels that the client opens, from the query."""
    tty = remote.is_requested(request, "tty")
    words: dict[Channel, bool] = {
        "stdin": remote.is_requested(request, "input"),
        "stdout": remote.is_requested(request, "output"),
        "stderr": remote.is_requested(request, "error") and not tty,
        "resize": tty,
    }
    return {"error", *(channel for channel, wanted in words.items() if wanted)}


async def _send_output(command: Command, stream: RemoteStream) -> int:
    """Send the command's output until its end; return its exit code."""

    async def pump(channel: Any) -> None:
        while data := await command.read(channel):
            await stream.write(channel, data)

    try:
        async with asyncio.TaskGroup() as group:
            for channel in command.outputs:
                group.create_task(pump(channel))
    except* OSError as group_of_errors:
        raise group_of_errors.exceptions[0] from None
    return await command.wait()


async def _forward_input(command: Command, stream: RemoteStream) -> None:
    """Send the client's input to the command. Raises OSError or BrokenProtocolError when the client disconnects."""
    while True:
        event = await stream.read()
        if event.channel == "resize":
            _resize_terminal(command, event.data)
        elif event.channel == "stdin" and command.stdin is not None:
            await _write_stdin(command.stdin, event.data, last=event.last)


async def _write_stdin(stdin: asyncio.StreamWriter, data: bytes, *, last: bool) -> None:
    try:
        stdin.write(data)
        async with asyncio.timeout(_STALL_SECONDS):
            await stdin.drain()
        if last and stdin.can_write_eof():
            stdin.write_eof()
    except ConnectionError:
        return  # the command does not read any more


def _resize_terminal(command: Command, data: bytes) -> None:
    try:
        size = msgspec.json.decode(data[:_RESIZE_MAX], type=dict[str, int])
    except msgspec.DecodeError:
        return
    command.resize(columns=max(0, size.get("Width", 0)), rows=max(0, size.get("Height", 0)))


async def _discard_input(stream: RemoteStream) -> None:
    """Read and discard. Raises OSError or BrokenProtocolError when the client disconnects."""
    while True:
        await stream.read()


async def _wait_for_close(session: Session) -> None:
    """Wait for the client to disconnect; it sends nothing more."""
    try:
        while await session.stream.read():
            pass
    except OSError:
        return


async def _wait_for_task(task: asyncio.Task[int]) -> None:
    await asyncio.wait((task,))


async def _run_until_first(*work: Coroutine[Any, Any, None]) -> None:
    """Run several coroutines until the first ends, and cancel the others. Raises the exception of the first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
