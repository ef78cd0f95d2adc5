"""A streamed answer read by channel: reasoning and content, then what is known of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from edge.inference.channels import AnswerReader, ChannelText
from edge.serve.ports import AnswerNote, AnswerPiece

Reading = AsyncGenerator[ChannelText | AnswerNote, None]


async def read_answer(
    pieces: AsyncGenerator[AnswerPiece, None], stops: Sequence[str] = (), count: Callable[[AnswerNote], None] = lambda note: None
) -> Reading:
    """Text by channel, then the note, which `count` gets first. After a stop string the rest is not shown, but the answer runs to its
    record."""
    reader = AnswerReader(stops)
    async with aclosing(pieces):
        async for piece in pieces:
            for part in reader.feed(piece.text, piece.tokens, verbatim=piece.verbatim, source=piece.source):
                yield part
            if piece.note:
                for part in reader.finish():
                    yield part
                note = replace(piece.note, stop=reader.stop) if reader.stop else piece.note  # a cloud's text is cut here alone
                count(note)
                yield note
