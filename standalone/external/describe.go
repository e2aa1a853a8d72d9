package external

import (
	"context"
	"fmt"
	"strings"

	"volplane.dev/volplane/internal/decide/diskspace"
)

// Description says where the objects are.
type Description struct {
	// Store names the store, for people.
	Store string `json:"store"`
	// Size is the size of the database in bytes, of all its users.
	Size int64 `json:"size"`
	// Members are those of a store that others run.
	Members []Member `json:"members,omitempty"`
}

// Member is how a member of the store is.
type Member struct {
	Server  string `json:"server"`
	Version string `json:"version,omitempty"`
	Leader  bool   `json:"leader,omitempty"`
	Size    int64  `json:"size,omitempty"`
	// Problem says why it does not respond, or what it reports.
	Problem string `json:"problem,omitempty"`
}

// String describes the store for users, in a line for itself and one for each member.
func (d Description) String() string {
	out := fmt.Sprintf("its store is %s, with a database of %s", d.Store, diskspace.Text(d.Size))
	for _, m := range d.Members {
		about := m.Problem
		if m.Version != "" {
			about = strings.TrimSuffix("etcd "+m.Version+", "+m.Problem, ", ")
		}
		if m.Leader {
			about += ", leads"
		}
		out += fmt.Sprintf("\n  %s  %s", m.Server, about)
	}
	return out
}

// Describe queries the status of all members.
func (s *Store) Describe(ctx context.Context) Description {
	d := Description{Store: "an etcd that others run, keys below " + s.options.Prefix}
	for _, a := range s.ask(ctx) {
		out := Member{Server: a.server}
		if a.err != nil {
			out.Problem = "does not answer: " + reason(a.err)
		} else {
			out.Version, out.Size = a.status.GetVersion(), a.status.GetDbSize()
			out.Leader = a.status.GetLeader() == a.status.GetHeader().GetMemberId()
			for _, e := range a.status.GetErrors() {
				out.Problem = e
			}
		}
		d.Size = max(d.Size, out.Size)
		d.Members = append(d.Members, out)
	}
	return d
}
