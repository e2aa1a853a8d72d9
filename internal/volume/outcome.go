package volume

// Outcome says what is known of a call that changes the world. It is the
// answer to "may the effect exist?", not to "was there an error?".
type Outcome int

const (
	// Unknown means that the effect may exist or may still be happening: a
	// deadline, a lost connection, an answer that makes no sense. An Unknown
	// call is repeated with the same arguments, or undone, never forgotten.
	Unknown Outcome = iota
	// Done means that the effect exists and the call need not be repeated.
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
