"""Recovery by training: `python -m lowbit.recover CHECKPOINT --teacher SRC --data FILE...`; docs/recovery.md explains
it."""
