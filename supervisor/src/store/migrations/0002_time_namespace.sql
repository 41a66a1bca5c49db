-- Whose clock the start times of a row were read by. NULL: the kernel has no time namespaces, or it was not recorded.
ALTER TABLE leases ADD COLUMN timens INTEGER;
