"""Conditioning and monitoring in training loops that build their optimizer and write their checkpoints themselves.

`wellcond.integrations.transformers` has a callback for the Trainer of transformers, `wellcond.integrations.lightning`
one for Lightning, each beside a callback for `wc.Monitor` and a function that asks `wc.recommend` with what the loop
has. `import wellcond` imports neither. Accelerate needs none:

    optimizer = accelerator.prepare(optimizer)
    handle.attach(optimizer)
    accelerator.register_for_checkpointing(handle)
    monitor = wc.Monitor(model, batch, log=accelerator)         # its trackers get the averages
"""
