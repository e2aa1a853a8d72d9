package adopt

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/sidecar"
)

// work is what one container does for the driver's controllers.
type work struct {
	in      Workload
	program string
	sidecar.Kept
}

// take decides what the controllers do and how: as volplane's own workload does, and otherwise as the vendor's sidecars
// do, whose work ends with their workloads. It returns whether these work on each node for its own volumes.
func (p *Plan) take(f Facts, mine []Workload) (onNodes bool) {
	var ours, vendors []work
	for _, w := range mine {
		if f.ours(w) {
			ours = append(ours, w.work()...)
		} else {
			vendors = append(vendors, w.work()...)
		}
	}
	from := ours
	if len(ours) == 0 {
		from = vendors
	}
	if all := controllers(from); len(all) > 0 && !f.ChoseControllers {
		p.Controllers = all
		if len(ours) == 0 {
			p.note("volplane takes over what is done there, with --controllers=%s", strings.Join(all, ","))
		}
	}
	p.ends(vendors)
	p.changedBlocks(f, mine)
	from = slices.DeleteFunc(from, func(w work) bool {
		return !slices.ContainsFunc(w.Controllers, func(c string) bool { return slices.Contains(p.Controllers, c) })
	})
	p.arguments(f, from)
	p.gates(f, from)
	if len(p.ControllerArgs) > 0 {
		p.note("kept of the arguments there: %s", strings.Join(p.ControllerArgs, " "))
	}
	for _, w := range from {
		for _, lost := range w.Lost {
			p.note("%s in %s: %s", w.program, w.in.short(), lost)
		}
	}
	return p.onNodes(f, from)
}

// ends lists the tasks that nothing performs any more when the vendor's workloads are gone.
func (p *Plan) ends(vendors []work) {
	for _, w := range vendors {
		for _, c := range w.Controllers {
			if !slices.Contains(p.Controllers, c) {
				p.note("%s in %s does the work of %q, which is not among --controllers: when it is gone, %s", w.program,
					w.in.short(), c, without(c))
			}
		}
	}
}

// changedBlocks reports who serves the changed blocks of snapshots, and what to add so that this goes on. That needs a
// choice of the user, because the Service has another name here, for which the vendor's certificate is not valid.
func (p *Plan) changedBlocks(f Facts, mine []Workload) {
	if f.ChangedBlocks {
		return
	}
	for _, w := range mine {
		if f.ours(w) || !slices.ContainsFunc(w.containers(), servesChangedBlocks) {
			continue
		}
		p.note("%s in %s serves the changed blocks of snapshots: when it is gone, backups read whole volumes, unless you "+
			"use --changed-blocks-secret and --changed-blocks-ca, with a certificate for the Service that they add",
			sidecar.SnapshotMetadata, w.short())
	}
}

func servesChangedBlocks(c corev1.Container) bool {
	r, ok := role(c)
	return ok && r == sidecar.SnapshotMetadata
}

// without reports the consequences if a controller runs nowhere.
func without(controller string) string {
	return map[string]string{
		"provisioner": "no volume is created or deleted", "capacity": "the scheduler finds no room for new volumes",
		"attacher": "no volume is attached or detached", "resizer": "no volume is expanded",
		"modifier":            "the attributes of volumes are not changed",
		"snapshotter":         "no snapshot is taken or deleted",
		"group-snapshotter":   "no group of snapshots is taken or deleted",
		"snapshot-controller": "no snapshot in the cluster gets a content",
		"health":              "unhealthy volumes are not reported",
	}[controller]
}

// controllers returns the controllers that do some work, each once.
func controllers(of []work) []string {
	var out []string
	for _, w := range of {
		for _, c := range w.Controllers {
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// arguments keeps the arguments that change the work, unless the user gives another value.
func (p *Plan) arguments(f Facts, of []work) {
	said := map[string]string{}
	for _, a := range f.Args {
		said[flagOf(a)] = ""
	}
	for _, w := range of {
		for _, a := range w.Args {
			first, twice := said[flagOf(a)]
			if !twice {
				said[flagOf(a)] = a
				p.ControllerArgs = append(p.ControllerArgs, a)
			} else if first != "" && first != a {
				p.note("%s in %s: %s is not kept, because another one has %s", w.program, w.in.short(), a, first)
			}
		}
	}
}

// flagOf returns the flag of an argument without its value.
func flagOf(argument string) string {
	name, _, _ := strings.Cut(argument, "=")
	return name
}

// gates keeps the feature gates that are off, and the alpha ones that are on. Other gates that are on change nothing
// here. A gate applies to all controllers, so it cannot be off in one sidecar and on in another.
func (p *Plan) gates(f Facts, of []work) {
	off, on := map[string]work{}, map[string]work{}
	for _, w := range of {
		for name, is := range w.Gates {
			if is {
				on[name] = w
			} else {
				off[name] = w
			}
		}
	}
	if slices.ContainsFunc(f.Args, func(a string) bool { return flagOf(a) == gatesFlag }) {
		return
	}
	var kept []string
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if sidecar.Alpha(name) {
			kept = append(kept, name+"=true")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(off)) {
		if other, both := on[name]; both {
			p.note("%s in %s: %s=false is not kept, because a gate counts for all controllers, and %s has it on",
				off[name].program, off[name].in.short(), name, other.program)
		} else if (sidecar.Gates{name: false}).TakesAway(p.Controllers) {
			p.note("%s in %s: %s=false is not kept, because one of --controllers needs the gate",
				off[name].program, off[name].in.short(), name)
		} else {
			kept = append(kept, name+"=false")
		}
	}
	if len(kept) > 0 {
		p.ControllerArgs = append(p.ControllerArgs, gatesFlag+"="+strings.Join(kept, ","))
	}
}

const gatesFlag = "--feature-gates"

// onNodes returns whether the work is done on each node, for the volumes of that node, and decides how it continues.
func (p *Plan) onNodes(f Facts, of []work) bool {
	i := slices.IndexFunc(of, func(w work) bool { return w.OnNode })
	if i < 0 {
		return false
	}
	what := fmt.Sprintf("%s in %s has --node-deployment: it works on each node for the volumes that are created there",
		of[i].program, of[i].in.short())
	switch f.Shape {
	case "":
		p.Refused = append(p.Refused, what+"; use --shape=daemonset --node-deployment --without-nodes=false")
	case "daemonset":
		p.NodeDeployment = true
		p.note("%s, and so do volplane's controllers", what)
	default:
		p.note("%s; that is not kept with --shape=%s: the one controller of the driver has to serve all nodes", what, f.Shape)
	}
	return true
}

// short returns the kind and the name of the workload.
func (w Workload) short() string { return strings.ToLower(w.Kind) + "/" + w.Name }

// work returns what the workload's containers do for controllers.
func (w Workload) work() []work {
	var out []work
	for _, c := range w.containers() {
		if runsControllers(c) {
			out = append(out, work{w, "volplane", sidecar.Kept{
				Controllers: strings.Split(argument(c, "controllers"), ","), Args: ownArguments(c),
			}})
		} else if r, ok := role(c); ok && r.OfController() {
			out = append(out, work{w, r.String(), keep(r, c)})
		}
	}
	return out
}

// keep returns what becomes of a sidecar's work.
func keep(r sidecar.Role, c corev1.Container) sidecar.Kept {
	args := expand(c, slices.Concat(c.Command, c.Args))
	if len(c.Command) == 0 {
		return r.Keep(args)
	}
	if by, ok := sidecar.RoleOf(c.Command[0]); ok && by == r {
		return r.Keep(args[1:])
	}
	k := r.Keep(nil)
	k.Lost = append(k.Lost, "no argument is kept: "+path.Base(c.Command[0])+" starts it, and only it knows them")
	return k
}

// expand replaces $(NAME) in arguments by the container's environment. Values from elsewhere, such as a Secret, stay as
// they are.
func expand(c corev1.Container, args []string) []string {
	var pairs []string
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			pairs = append(pairs, "$("+e.Name+")", e.Value)
		}
	}
	replace := strings.NewReplacer(pairs...)
	out := slices.Clone(args)
	for i := range out {
		out[i] = replace.Replace(out[i])
	}
	return out
}

// ownArguments returns the arguments of volplane's controllers that manifests do not generate.
func ownArguments(c corev1.Container) []string {
	var out []string
	args := expand(c, c.Args[1:])
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !strings.Contains(a, "=") && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			a += "=" + args[i]
		}
		switch flagOf(a) {
		case "--csi-address", "--controllers", "--leader-election", "--leader-election-namespace", "--http-endpoint",
			"--provisioner-node-deployment", "--snapshotter-node-deployment":
		default:
			out = append(out, a)
		}
	}
	return out
}
