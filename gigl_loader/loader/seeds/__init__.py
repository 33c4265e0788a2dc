"""The seeds of an epoch, as users give them: checked, cut over ranks, grouped."""
