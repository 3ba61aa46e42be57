"""A stage at work on a log, batch by batch, as the engine has it; where wanted, in a new process after each batch."""

from pipeline.stages.kept import Records


def processed(make, batches, restart=None):
    """All outputs, the stage in the end, and its changelog.

    With ``restart`` a new stage goes on after each batch; it reads the ``changelog``, or has a ``store`` that did.
    """
    stage, state, outputs, store = make(), {}, [], Records()
    stage.keep_in(store)
    for batch in batches:
        made = stage.process(batch)
        outputs += made.outputs
        for key, value in made.changes.items():
            state.pop(key, None) if value is None else state.update({key: value})
        if restart == "store":
            stage.committed(made.changes, 0)
            stage = make()
            stage.keep_in(store)
        elif restart == "changelog":
            stage = make()
            for key, value in state.items():
                stage.restore(key, value)
    return outputs, stage, state


def in_batches(records, size):
    return [records[at : at + size] for at in range(0, len(records), size)]
