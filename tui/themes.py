"""The themes: dark, light and high contrast. Screens use their variables only; no rule names a colour."""

from textual.theme import Theme

__all__ = ["THEMES", "THEME_NAMES"]

DARK = Theme(
    name="dark",
    dark=True,
    primary="#7aa2f7",
    secondary="#8f9bb3",
    accent="#7dcfff",
    success="#9ece6a",
    warning="#e0af68",
    error="#f7768e",
    foreground="#d5d9e6",
    background="#14161f",
    surface="#1a1d29",
    panel="#242838",
    variables={
        "muted": "#8b93ab",
        "footer-key-foreground": "#7dcfff",
        "border": "#3a4058",
        "border-blurred": "#3a4058",
    },
)
LIGHT = Theme(
    name="light",
    dark=False,
    primary="#1f5fbf",
    secondary="#5b6472",
    accent="#0b6e8a",
    success="#2b6a1e",
    warning="#8a5300",
    error="#b3202f",
    foreground="#1d2430",
    background="#fbfbf9",
    surface="#f3f3ef",
    panel="#e4e5e0",
    variables={
        "muted": "#5b6270",
        "footer-key-foreground": "#0b5a72",
        "border": "#b9bcb4",
        "border-blurred": "#b9bcb4",
    },
)
HIGH_CONTRAST = Theme(
    name="high-contrast",
    dark=True,
    primary="#ffff00",
    secondary="#ffffff",
    accent="#00ffff",
    success="#00ff00",
    warning="#ffff00",
    error="#ff8080",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#262626",
    text_alpha=1.0,
    variables={
        "muted": "#ffffff",
        "footer-key-foreground": "#ffff00",
        "border": "#ffffff",
        "border-blurred": "#ffffff",
        "text-muted": "#ffffff",
        "block-cursor-background": "#ffff00",
        "block-cursor-foreground": "#000000",
    },
)
THEMES = (DARK, LIGHT, HIGH_CONTRAST)
THEME_NAMES = tuple(theme.name for theme in THEMES)
