// Package flex decides what a FlexVolume driver is called and given, what its
// answer means, and what the mount table says about what it did.
//
// Life cycle of a call: a driver has a Name, which its directory has too;
// Argument makes the JSON that an Operation gets; ParseAnswer reads what the
// driver printed; AfterMount and AfterUnmount look at the mounts before and
// after and give the Verdict, which the exit code alone never does. Before any
// of it, a Policy says whether a Pod's author may ask the driver for this.
//
// Nothing here trusts a driver: what it prints is bounded, and no text that goes
// on to people holds a secret (Redact).
package flex
