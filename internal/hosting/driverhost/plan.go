package driverhost

import (
	"reflect"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// plan says what is done about the drivers of a host.
type plan struct {
	// leave are drivers that are no longer followed, stop the programs that are ended then, and start the drivers that
	// are followed from then on.
	leave, stop []string
	start       []driverfile.Driver
}

// planOf decides what is done when drivers are followed, the files say what is wanted or cannot be used, and programs
// are known. Nothing is ended because of a file that cannot be used, and nothing at all if the directory of the files
// cannot be read.
func planOf(
	now map[string]driverfile.Driver, wanted []driverfile.Driver, broken map[string]error, known []string,
	dir driverfile.Dir,
) plan {
	var p plan
	if _, unread := broken[string(dir)]; unread {
		return p
	}
	kept := driverfile.Programs(wanted, broken, func(p driverfile.Process) bool { return len(p.Exec) > 0 })
	is := map[string]bool{}
	for _, d := range wanted {
		is[d.Name] = true
		was, follows := now[d.Name]
		if follows && reflect.DeepEqual(was, d) {
			continue
		}
		if follows {
			p.leave = append(p.leave, d.Name)
		}
		p.start = append(p.start, d)
	}
	for name := range now {
		if !is[name] && !kept[name] {
			p.leave = append(p.leave, name)
		}
	}
	for _, program := range known {
		if !kept[program] {
			p.stop = append(p.stop, program)
		}
	}
	return p
}
