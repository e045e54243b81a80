"""Checksums of pieces, and that of a tensor from those of its pieces, so that nothing is read twice.

Source  zlib's crc32_combine: appending n zero bytes to a message is a linear map of its CRC over the field of two
        elements, which squaring gives for any n
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

from torch import Tensor

from scalewright.run.weight_sync.wire import bytes_of

POLYNOMIAL = 0xEDB88320
"""Of CRC-32 (IEEE 802.3), bits reversed."""
NUM_BITS = 32
Matrix = tuple[int, ...]


def checksum(data: memoryview) -> int:
    """CRC-32: the fastest of the standard library's that finds every burst of up to 32 flipped bits."""
    return zlib.crc32(data)


def checksum_of(tensor: Tensor) -> int:
    return checksum(bytes_of(tensor.contiguous()))


def joined(pieces: Iterable[tuple[int, int]]) -> int:
    """The checksum of pieces that lie one after the other, from (checksum, number of bytes) of each."""
    total = 0
    for value, num_bytes in pieces:
        total = _times(_appended(num_bytes), total) ^ value
    return total


def digest(sums: Mapping[str, int]) -> str:
    """One text for the checksums of all tensors."""
    lines = "".join(f"{name} {sums[name]:08x}\n" for name in sorted(sums))
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    return digest({name: checksum_of(tensor) for name, tensor in tensors.items()})


@lru_cache(maxsize=4096)
def _appended(num_bytes: int) -> Matrix:
    """The map of a CRC when so many zero bytes follow."""
    power: Matrix = (POLYNOMIAL, *(1 << bit for bit in range(NUM_BITS - 1)))  # one zero bit
    for _ in range(3):
        power = _squared(power)
    result: Matrix = tuple(1 << bit for bit in range(NUM_BITS))
    while num_bytes:
        if num_bytes & 1:
            result = tuple(_times(power, column) for column in result)
        power = _squared(power)
        num_bytes >>= 1
    return result


def _times(matrix: Matrix, vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total


def _squared(matrix: Matrix) -> Matrix:
    return tuple(_times(matrix, column) for column in matrix)
