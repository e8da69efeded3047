"""The worker: the order of steps of docs/workers.md, for each effect a number of places that serve one command each."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, TimeoutError as NatsTimeout
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from .envelope import NAME, Address, Command, Json, error_payload, result
from .errors import EffectError, Failed, Retry, Unknown

log = logging.getLogger("saga_runner_worker")

Handler = Callable[[Command], Awaitable[Json]]

#: Commands that are answered and remembered, so that a repetition needs no look-up.
ANSWERED_MAX = 65_536
#: A first delivery older than this, in seconds, is looked up among the results too.
RECHECK_AFTER = 60.0
#: Longest delay of a negative acknowledgement, in seconds: what is due later comes back in between.
NAK_MAX = 60.0
#: Lifetime of one request for a command, in seconds; a shutdown waits for it.
PULL = 2.0
FIRST_PAUSE, PAUSE_MAX = 0.2, 30.0
MAX_UNACKNOWLEDGED = 4_096
WRONG_LAST_SEQUENCE, TOO_LARGE = 10_071, 10_054


class _GiveBack(Exception):
    def __init__(self, delay: float) -> None:
        self.delay = delay


@dataclass
class _Effect:
    name: str
    handler: Handler
    concurrency: int
    attempts: int
    timeout: float


class Worker:
    """Serves effects whose files say `external: {}`.

    `group` is the manifest's `group`, which is the name of the cluster unless it says otherwise; `multi_tenant` whether
    the manifest has `tenants`. Further arguments go to `nats.connect`.
    """

    def __init__(
        self,
        servers: str | list[str],
        *,
        group: str,
        multi_tenant: bool = True,
        commands_stream: str = "WORKFLOW_COMMANDS",
        events_stream: str = "WORKFLOW_EVENTS",
        ack_wait: float = 30.0,
        **options: Any,
    ) -> None:
        self._options = {"max_reconnect_attempts": -1, **options, "servers": servers}
        self._group, self._multi_tenant = group, multi_tenant
        self._commands, self._events, self._ack_wait = commands_stream, events_stream, ack_wait
        self._effects: list[_Effect] = []
        self._answered: OrderedDict[Address, None] = OrderedDict()
        self._stopping = asyncio.Event()
        self._name = uuid.uuid4().hex
        self._js: Any = None

    def effect(
        self, name: str, *, concurrency: int = 32, attempts: int = 5, timeout: float = 60.0
    ) -> Callable[[Handler], Handler]:
        """Registers the handler of an effect. `attempts`: calls in all; `timeout`: seconds of one call."""
        if not NAME.fullmatch(name) or any(effect.name == name for effect in self._effects):
            raise ValueError(f"{name!r} is not a name of an effect, or has a handler already")

        def register(handler: Handler) -> Handler:
            self._effects.append(_Effect(name, handler, concurrency, attempts, timeout))
            return handler

        return register

    def stop(self) -> None:
        """Takes no new commands; `serve` ends when those in hand are answered."""
        self._stopping.set()

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then finishes what is in hand."""

        async def main() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
            await self.serve()

        asyncio.run(main())

    async def serve(self) -> None:
        connection = await nats.connect(**self._options)
        try:
            self._js = connection.jetstream(timeout=5)
            places = [self._place(effect) for effect in self._effects for _ in range(effect.concurrency)]
            await asyncio.gather(*places)
        finally:
            # Sends what is still to be sent, the last acknowledgements above all.
            await connection.drain()

    async def _place(self, effect: _Effect) -> None:
        """Takes one command after the other."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                queue = await self._js.pull_subscribe_bind(await self._join(effect), stream=self._commands)
                while not self._stopping.is_set():
                    try:
                        [message] = await queue.fetch(1, timeout=PULL)
                    except (NatsTimeout, asyncio.TimeoutError):
                        continue
                    pause = FIRST_PAUSE
                    await self._serve(effect, message)
                await queue.unsubscribe()
            except Exception as error:  # The connection, the stream or the consumer is gone for now.
                log.warning("effect %s: the queue is lost, joining again: %r", effect.name, error)
                try:
                    await asyncio.wait_for(self._stopping.wait(), pause)
                except TimeoutError:
                    pause = min(pause * 2, PAUSE_MAX)

    async def _join(self, effect: _Effect) -> str:
        """Creates the shared consumer, or takes the one that is there."""
        durable = f"effect-{self._group}-{effect.name}"
        prefix = "tenant.*." if self._multi_tenant else ""
        wanted = api.ConsumerConfig(
            durable_name=durable,
            filter_subject=f"{prefix}effect.{effect.name}.>",
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,
            max_deliver=-1,
            max_ack_pending=MAX_UNACKNOWLEDGED,
            metadata={"saga_runner_group": self._group},
        )
        try:
            found = (await self._js.consumer_info(self._commands, durable)).config
        except NotFoundError:
            # Two that are alike do no harm to each other.
            found = (await self._js.add_consumer(self._commands, wanted)).config
        if found.filter_subject != wanted.filter_subject or found.ack_policy != wanted.ack_policy:
            raise ValueError(f"consumer {durable} is another's: {found}")
        if (found.max_deliver or -1) > 0:
            raise ValueError(f"consumer {durable} delivers at most {found.max_deliver} times")
        self._ack_wait = min(found.ack_wait or self._ack_wait, self._ack_wait)
        return durable

    async def _serve(self, effect: _Effect, message: Msg) -> None:
        """One delivery, from gate to acknowledgement."""
        beat = asyncio.create_task(self._beat(message))
        try:
            readable = await self._process(effect, message)
            await (message.ack() if readable else message.term())
        except _GiveBack as back:
            await message.nak(min(max(back.delay, 0.001), NAK_MAX))
        except Exception:  # Unanswered for, it comes again after the ack wait.
            log.exception("a command of %s was not answered for", effect.name)
        finally:
            beat.cancel()

    async def _beat(self, message: Msg) -> None:
        while True:
            await asyncio.sleep(self._ack_wait / 3)
            await message.in_progress()

    async def _process(self, effect: _Effect, message: Msg) -> bool:
        """False: the command can never be read."""
        address = Address.parse(message.subject, self._multi_tenant)
        if address is None or address.effect != effect.name:
            log.error("%r is not the subject of a command of %s; dropped", message.subject, effect.name)
            return False
        if await self._is_answered(address, message):
            return True
        try:
            command = Command.parse(message.data, address, message.headers)
        except ValueError as error:
            log.error("command %s cannot be executed: %s", address.command_id, error)
            payload = error_payload("command.invalid", str(error))
            await self._record_any(address, [result(address, None, "Failed", payload, 0)])
            return False
        result_type, payload, calls = await self._next(effect, command, message.metadata.num_delivered or 1)
        try:
            body = result(address, command, result_type, payload, calls)
        except (TypeError, ValueError, RecursionError) as error:
            log.error("the result of command %s cannot be recorded: %s", command.command_id, error)
            payload = error_payload("result.refused", f"the handler's result cannot be recorded: {error}")
            body = result(address, command, "TimedOut", payload, calls)
        refused = "Failed" if result_type == "Failed" else "TimedOut"
        payload = error_payload("result.refused", f"the broker refuses a result of {len(body)} bytes")
        await self._record_any(address, [body, result(address, command, refused, payload, calls)])
        self._mark(address)
        return True

    async def _is_answered(self, address: Address, message: Msg) -> bool:
        if address in self._answered:
            return True
        metadata = message.metadata
        age = time.time() - metadata.timestamp.timestamp()
        if (metadata.num_delivered or 1) <= 1 and age < RECHECK_AFTER:
            return False
        answered = await self._last(self._events, address.subject("effect_result")) is not None
        if answered:
            self._mark(address)
        return answered

    def _mark(self, address: Address) -> None:
        self._answered[address] = None
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)

    async def _last(self, stream: str, subject: str) -> bytes | None:
        try:
            return (await self._js.get_last_msg(stream, subject)).data or b""
        except NotFoundError:
            return None
        except (NatsTimeout, asyncio.TimeoutError, APIError) as error:
            log.warning("%s cannot be looked up: %r", subject, error)
            raise _GiveBack(1.0) from error

    async def _next(self, effect: _Effect, command: Command, delivered: int) -> tuple[str, Json, int]:
        """Makes the next attempt, if it is due. The type of the result, its payload, and the calls so far."""
        progress = {"calls": 0, "outcome_unknown": False, "delivered": 0, "not_before_ms": 0, "worker": "", **command.progress}
        if delivered > 1:
            stored = await self._last(self._commands, command.address.subject("effect_progress"))
            progress |= json.loads(stored) if stored else {}
            # A delivery that ended without a word may have made a call.
            progress["outcome_unknown"] |= progress["delivered"] + 1 != delivered
        left = command.deadline - time.time()
        if left <= 0:
            last = progress.get("error")
            said = f"; the last call: {last['class']}: {last.get('message', '')}" if last else ""
            return "TimedOut", error_payload("deadline", f"the deadline passed{said}"), progress["calls"]
        early = progress["not_before_ms"] / 1000 - time.time()
        if early > 0:
            await self._give_back(command, progress, delivered, early)
        progress["calls"] += 1
        failure: EffectError
        try:
            async with asyncio.timeout(min(left, effect.timeout)):
                payload = await effect.handler(command)
            return "Succeeded", {} if payload is None else payload, progress["calls"]
        except EffectError as error:
            failure = error
        except TimeoutError:
            failure = Retry(None, "timeout", "the handler did not end in time", unknown=True)
        except Exception as error:
            log.exception("the handler of %s failed", effect.name)
            failure = Retry(None, "ambiguous", repr(error), unknown=True)
        if isinstance(failure, Retry):
            progress["outcome_unknown"] |= failure.unknown
            pause = failure.after
            if pause is None:
                pause = min(FIRST_PAUSE * 2 ** (progress["calls"] - 1), PAUSE_MAX)
            due = time.time() + pause
            if progress["calls"] < effect.attempts and due < command.deadline:
                progress["not_before_ms"] = int(due * 1000)
                progress["error"] = error_payload(failure.error_class, failure.message)
                await self._give_back(command, progress, delivered, pause)
        settled = isinstance(failure, Failed) and failure.settles
        outcome_unknown = isinstance(failure, Unknown) or (progress["outcome_unknown"] and not settled)
        payload = error_payload(failure.error_class, failure.message, refused=settled)
        return "TimedOut" if outcome_unknown else "Failed", payload, progress["calls"]

    async def _give_back(self, command: Command, progress: dict[str, Json], delivered: int, delay: float) -> None:
        """Leaves word for whoever gets the command next, and ends this delivery."""
        progress |= {"delivered": delivered, "worker": self._name}
        try:
            subject = command.address.subject("effect_progress")
            await self._js.publish(subject, json.dumps(progress).encode(), stream=self._commands)
        except Exception as error:  # Without a word the next one assumes the worst, which is safe.
            log.warning("no word was left about %s: %r", command.command_id, error)
        raise _GiveBack(min(delay, command.deadline - time.time()))

    async def _record_any(self, address: Address, bodies: list[bytes]) -> None:
        """Publishes the first of these that the broker takes. As long as it takes none, the command is neither called again
        nor acknowledged: its result is all that tells that it was called."""
        pause = 1.0
        while True:
            for body in bodies:
                if await self._record(address, body):
                    return
            log.error("the broker refuses every result of %s; trying again", address.command_id)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def _record(self, address: Address, body: bytes) -> bool:
        """Publishes until a result stands, whoever wrote it. False: the broker will never take this one."""
        headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
        trace = json.loads(body)["metadata"].get("traceparent")
        if trace:
            headers["traceparent"] = trace
        subject, pause = address.subject("effect_result"), 0.02
        while True:
            try:
                await self._js.publish(subject, body, stream=self._events, headers=headers)
                return True
            except MaxPayloadError:
                return False
            except APIError as error:
                if error.err_code == WRONG_LAST_SEQUENCE:
                    return True
                if error.err_code == TOO_LARGE:
                    return False
                log.warning("the result of %s waits: %r", address.command_id, error)
            except Exception as error:  # It may be stored; the same message again finds out.
                log.warning("the result of %s waits: %r", address.command_id, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
