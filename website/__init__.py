"""What makes a site of docs/: links that work on a code host and on the site, and pages made from the code."""
