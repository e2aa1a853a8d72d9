package volume

// Outcome says whether a call that changes something took effect. It answers "may the effect
// exist?", not "was there an error?".
type Outcome int

const (
	// Unknown means that the effect may exist or may still come: the deadline passed, the
	// connection was lost, or the answer makes no sense. The call must be repeated with
	// the same arguments or undone; it must not be forgotten.
	Unknown Outcome = iota
	// Done means that the effect exists. The call need not be repeated.
	Done
	// Failed means that the effect does not exist and will not appear later.
	Failed
)

// String returns the outcome's name as it appears in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "Done"
	case Failed:
		return "Failed"
	default:
		return "Unknown"
	}
}
