"""One operation each: a plain torch reference, and faster versions beside it."""
