-- The set of services in this scope, if the scope has newer rules than the caller (ARGV[5]); otherwise false.
local caller_version = tonumber(ARGV[5])
local outdated = scope.version and caller_version and caller_version < scope.version and read_set(scope.members)
