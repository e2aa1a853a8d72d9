package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"volplane.dev/volplane/internal/controller/provisioner"
)

// asked counts the requests of the measured programs to an API server, according to its audit log: "patch
// volumeattachments/status", with the code if it was refused.
type asked struct {
	requests map[string]float64
	// renewals are the lease renewals with which the programs exclude each other.
	renewals float64
	// watches are those that are open, by what is watched.
	watches map[string]int
}

// auditEvent is the part of an event of the audit log that counts.
type auditEvent struct {
	Stage, Verb string
	ObjectRef   struct{ Resource, Subresource, Name string }
	// ResponseStatus has the code of HTTP.
	ResponseStatus struct{ Code int }
}

func (e auditEvent) kind() string {
	name := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		name += "/" + e.ObjectRef.Subresource
	}
	return name
}

// audit reads the audit log from its beginning.
func (a *arena) audit() (asked, error) {
	out := asked{requests: map[string]float64{}, watches: map[string]int{}}
	f, err := os.Open(a.path("audit.log"))
	if err != nil {
		return out, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return out, fmt.Errorf("read the audit log: %w", err)
		}
		out.add(e)
	}
	return out, lines.Err()
}

func (s *asked) add(e auditEvent) {
	switch {
	case e.Verb == "watch" && e.Stage == "ResponseStarted":
		s.watches[e.kind()]++
	case e.Verb == "watch":
		if s.watches[e.kind()]--; s.watches[e.kind()] <= 0 {
			delete(s.watches, e.kind())
		}
	case e.Stage != "ResponseComplete":
	case e.ObjectRef.Resource == "leases" && !strings.HasPrefix(e.ObjectRef.Name, provisioner.Standalone().Own.Name):
		if e.Verb == "update" || e.Verb == "patch" {
			s.renewals++
		}
	default:
		name := e.Verb + " " + e.kind()
		if e.ResponseStatus.Code >= 400 {
			name += fmt.Sprint(" failed ", e.ResponseStatus.Code)
		}
		s.requests[name]++
	}
}

// since returns the requests after before, divided by n volumes: all of them, and the failed ones.
func (s asked) since(before asked, n int) (each map[string]float64, all, failed float64) {
	each = map[string]float64{}
	for name, count := range s.requests {
		if more := (count - before.requests[name]) / float64(n); more > 0 {
			each[name] = more
			all += more
			if strings.Contains(name, " failed ") {
				failed += more
			}
		}
	}
	return each, all, failed
}
