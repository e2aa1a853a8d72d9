// Package hostile lets volplane live with drivers that do what they like: answer
// any code with the work done or not, report another size than was requested or none,
// hang, die in the middle of a call, respond late, and disclose every secret that they
// were given.
//
// A life is a driver of its own, a namespace, and what users do there: claims and Pods
// are created, expanded and deleted, volumes are filesystems or block devices, to be kept
// or not, or a Pod's own. A driver stages or not, so that it can be seen or not. Lives
// are played side by side, a round at a time, over one API server, with controllers and
// two node agents that are processes and are killed with SIGKILL at any moment; some
// agents lose their journal then. What outlives all of them is the driver's inventory and
// the mounts. At the end of a round the drivers behave, and then all statements about a
// volume have to agree: the inventory, the objects, the journals of the nodes, the mount
// table. Then everything is deleted, and nothing may be left.
//
// A seed determines a round: what users do, how each call goes, and which process is
// killed when. What happens between two of them depends on the machine, so a seed that
// failed may have to be played more than once.
package hostile
