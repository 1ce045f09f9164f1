"""Files of photographs with captions, in the shapes in which they are published: JSON, tables, shards, hub datasets."""
