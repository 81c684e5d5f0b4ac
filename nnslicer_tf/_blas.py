"""Limits on the number of threads that matrix products use."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def one_thread_a_product() -> AbstractContextManager:
    """Limit matrix products to the calling thread until the context ends.

    For products so small that sharing one among threads costs more than it gains.
    """
    return _blas().limit(limits=1)
