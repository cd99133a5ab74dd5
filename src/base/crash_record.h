// A record of what was going on when the process dies of a signal that a fault raises.
#pragma once

namespace sluice {

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT first print what set_check_hook was given (the
// engine's last steps), once, and then take the course they had before: a core, a sanitizer's report. Best
// effort: the hook may need what the fault broke, so an alarm ends it after a few seconds. Once, at start.
void record_crashes();

}  // namespace sluice
