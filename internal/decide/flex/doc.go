// Package flex decides which arguments a FlexVolume driver gets, what its answer means, and what
// the mount table says about its work.
//
// Life cycle of a call: the driver has a Name, which its directory has, too. Argument makes the
// JSON for an Operation. ParseAnswer parses the output. AfterMount and AfterUnmount compare the
// mounts before and after, and return the Verdict; the exit code alone never decides. Before all
// that, a Policy says whether the author of a Pod may use the driver in this way.
//
// No driver is trusted: its output is bounded, and no text for people holds a secret (Redact).
package flex
