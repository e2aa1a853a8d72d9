package room

import (
	"time"

	"volplane.dev/volplane/internal/volume"
)

// Path is the URL path at which the API server of a standalone control plane serves its Report.
const Path = "/volplane/room"

// Report has the facts and the decision as JSON; sizes are in bytes.
type Report struct {
	// Used is the size of the data in the database.
	Used int64 `json:"used"`
	// Size is the size of the database's file.
	Size int64 `json:"size"`
	// Limit is the value of Used above which new objects are refused.
	Limit int64 `json:"limit"`
	// Free is the free space of the disk.
	Free int64 `json:"free"`
	// Total is the size of the disk.
	Total int64 `json:"total"`
	// Reserve is the size of the reserve on the disk.
	Reserve int64 `json:"reserve"`
	// Refuses says whether new objects are refused.
	Refuses bool         `json:"refuses"`
	Reason  string       `json:"reason"`
	Message string       `json:"message"`
	Next    volume.Actor `json:"next,omitzero"`
	// Backup is the time of the newest backup in the data directory; nil if there is none.
	Backup *time.Time `json:"backup,omitempty"`
	// NoBackups says that backups are not made by themselves.
	NoBackups bool `json:"noBackups,omitempty"`
	// Members describes an etcd that others run, of which Free, Total and Reserve say nothing; nil for the control plane's
	// own.
	Members *MembersReport `json:"members,omitempty"`
}

// MembersReport says which members of an etcd that others run have answered.
type MembersReport struct {
	All    int `json:"all"`
	Answer int `json:"answer"`
	// Prefix begins all keys of the control plane.
	Prefix string `json:"prefix"`
}

// ReportOf returns the Report of facts and their plan.
func ReportOf(f Facts, p Plan) Report {
	return Report{
		Used: f.Used, Size: f.Size, Limit: soft(f.Quota), Free: f.Free, Total: f.Total, Reserve: f.Reserve,
		Refuses: p.RefuseNew, Reason: string(p.Because.Reason), Message: p.Because.Message, Next: p.Because.Next,
	}
}

// ReportOfMembers returns the Report of an etcd that others run.
func ReportOfMembers(m Members, p Plan, prefix string) Report {
	r := ReportOf(Facts{Used: m.Used, Size: m.Size, Quota: m.Quota}, p)
	r.Members = &MembersReport{All: m.All, Answer: m.Answer, Prefix: prefix}
	return r
}
