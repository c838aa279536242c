"""Session settings: recommendations with their reasons, storage, and application."""

from ortfuse.runtime.session_settings.config import SessionConfig, Setting
from ortfuse.runtime.session_settings.open_session import session, stored_config
from ortfuse.runtime.session_settings.recommendations import recommended
from ortfuse.runtime.session_settings.settings_in_model import config_beside, config_of, hand_on, store, write_beside

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
