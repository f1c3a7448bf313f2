# SPDX-License-Identifier: Apache-2.0
"""Exceptions by status: what the caller should do decides the type, the message tells what went wrong."""


class WeftError(RuntimeError):
    """Base of Weft's errors. Attributes: status, the C library's code, such as 'ERR_MISMATCH'; field, the parameter of
    the C library that the error is about, such as 'world_size', or None."""

    __module__ = "weft"
    status = field = None


_BY_STATUS = {"": WeftError}
for _status, (_name, _doc, *_also) in {  # Python's own second base is for those who catch it
    "ERR_INVALID_ARGUMENT": ("WeftArgumentError", "An argument is wrong: fix the call.", ValueError),
    "ERR_UNSUPPORTED": ("WeftUnsupportedError", "Not supported: choose something else."),
    "ERR_NO_MEMORY": ("WeftNoMemoryError", "Out of memory: free some or ask for less.", MemoryError),
    "ERR_NOT_FOUND": ("WeftNotFoundError", "Something named does not exist."),
    "ERR_FORMAT": ("WeftFormatError", "A file or message is malformed."),
    "ERR_SYSTEM": ("WeftSystemError", "A system call failed.", OSError),
    "ERR_MISMATCH": ("WeftMismatchError", "Ranks disagree: make them call the same thing. Both sides are named."),
    "ERR_PEER_DIED": ("WeftPeerDiedError", "A rank is gone: rebuild the group without it."),
    "ERR_TIMEOUT": ("WeftTimeoutError", "The deadline passed.", TimeoutError),
    "ERR_ABORTED": ("WeftAbortedError", "Another rank or the caller ended the group or the world."),
    "ERR_STATE": ("WeftStateError",
                  "The object is not in a state for this call, such as before init or after finalize."),
    "ERR_INTERNAL": ("WeftInternalError", "A bug in Weft: please report it."),
    "ERR_LINK": ("WeftLinkError", "A link between two live ranks broke: call again, another path is taken."),
}.items():
    globals()[_name] = _BY_STATUS[_status] = type(_name, (WeftError, *_also), {
        "__doc__": _doc, "__module__": "weft", "status": _status})
