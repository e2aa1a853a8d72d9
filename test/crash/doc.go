// Package crash ends the control plane at each of its steps.
//
// A step is one effect on the outside: a write to the API or a call that
// changes something at the driver. A scenario is played once to count its
// steps. Then it is played again for each of them, twice: the control plane dies just
// before the step, and just after it, when the effect is done and its answer has not
// arrived. A new control plane, which knows only what the API and the driver know, has to
// bring the scenario to the same end, and nothing may be lost, left or done twice.
//
// A node agent has a journal and mounts beside that, which are its host's: it is
// a process here, with the bundled driver in it, and dies by SIGKILL.
package crash
