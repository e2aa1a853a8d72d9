// Package whytest has a small cluster in which something can be wrong, and the scenes with which explanations are
// tested. It is for tests only.
//
// Life cycle: New creates a Scene in which all is well; a Row changes it and names the object in question; Written
// explains rows, one after the other, and Equal compares what was written with a file. There, a link "as usual" is that
// of the explanation of the same object, or else of the claim, which stands further up, and one "as above" is the one
// that the headline quotes.
package whytest
