package room

// Path is where the API server of a standalone control plane tells about its
// room.
const Path = "/volplane/room"

// Report is what it tells.
type Report struct {
	// Used is what the database holds, Size its file's size, Limit what it may
	// hold before new objects are refused.
	Used  int64 `json:"used"`
	Size  int64 `json:"size"`
	Limit int64 `json:"limit"`
	// Free and Total are its disk's, Reserve what is held in reserve there.
	Free    int64 `json:"free"`
	Total   int64 `json:"total"`
	Reserve int64 `json:"reserve"`
	// Refuses says that new objects are refused.
	Refuses bool   `json:"refuses"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
}

// ReportOf tells facts and what follows from them.
func ReportOf(f Facts, p Plan) Report {
	return Report{
		Used: f.Used, Size: f.Size, Limit: soft(f.Quota), Free: f.Free, Total: f.Total, Reserve: f.Reserve,
		Refuses: p.RefuseNew, Reason: string(p.Because.Reason), Message: p.Because.Message, Next: p.Because.Next,
	}
}
