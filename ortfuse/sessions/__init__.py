"""What a session is opened with: recommended settings with their reasons, where they are stored, and how they are applied."""

from ortfuse.sessions.config import SessionConfig, Setting
from ortfuse.sessions.opening import session, stored_config
from ortfuse.sessions.recommended import recommended
from ortfuse.sessions.stored import config_beside, config_of, hand_on, store, write_beside

__all__ = [
    "SessionConfig",
    "Setting",
    "config_beside",
    "config_of",
    "hand_on",
    "recommended",
    "session",
    "store",
    "stored_config",
    "write_beside",
]
