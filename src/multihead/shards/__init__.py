"""Texts of any size as shards: cut, computed anywhere, joined in order

    cutting      one or more texts as shards of whole lines that a process can read without the rest
    storage      files by paths, or in object stores by URLs
    folder       what is finished of an output: recorded, resumed, joined
    publishing   outputs that are made on this machine and uploaded to URLs
    ray_engine   processes on a Ray cluster

`workers` has the protocol of engines and the processes of one machine; `lines.translate_shards` translates shards.
"""
