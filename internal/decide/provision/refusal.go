package provision

// Refusal is a CreateVolume call that ended with an error.
type Refusal struct {
	// Code is the name of its gRPC code.
	Code string
	// First says that no earlier call with the intent can have had an effect,
	// Whole that the call had the Secret that the intent wants, if any.
	First, Whole bool
}

// NothingMade says that the driver has no volume of the intent, neither by this
// call nor by an earlier one.
//
// CSI has a code for each reason not to begin. With those about the request a
// driver also says that it has no such volume, as it must answer OK to the
// arguments of one that it has. Those about whether it serves the caller at all
// tell of this call only, and that a volume exists already but is another one is
// no comfort when it may be ours. What remains, Internal and Unknown above all,
// is said by drivers that failed half-way or after they were done.
func (r Refusal) NothingMade() bool {
	switch r.Code {
	case "InvalidArgument", "NotFound", "OutOfRange", "ResourceExhausted":
		return r.Whole
	case "AlreadyExists", "Unimplemented", "PermissionDenied", "Unauthenticated":
		return r.First
	}
	return false
}
